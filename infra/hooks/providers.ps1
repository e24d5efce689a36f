# Registers the resource provider Microsoft.App, to which the app's subnet is delegated. Nothing else registers it: the
# deployment has no resource of it.
$ErrorActionPreference = 'Stop'
$PSNativeCommandUseErrorActionPreference = $true
$values = @{}
foreach ($line in azd env get-values) {
  if ($line -match '^(\w+)="?([^"]*)"?$') { $values[$Matches[1]] = $Matches[2] }
}

if ($values['PRIVATE_NETWORK'] -ne 'true') { return }
if (-not (Get-Command az -ErrorAction SilentlyContinue)) {
  Write-Warning 'PRIVATE_NETWORK needs the resource provider Microsoft.App, and az is not installed to register it.'
  Write-Warning 'If the deployment fails: az provider register --namespace Microsoft.App --wait'
  return
}
$subscription = $values['AZURE_SUBSCRIPTION_ID']
$state = az provider show --namespace Microsoft.App --subscription $subscription --query registrationState --output tsv
if ($state -ne 'Registered') {
  Write-Host 'Registering the resource provider Microsoft.App: this takes a minute or two.'
  az provider register --namespace Microsoft.App --subscription $subscription --wait
}
