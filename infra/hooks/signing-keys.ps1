# Makes the key of approval links for the first deployment; the deployment puts it into the vault, which keeps the one it has.
# Where it cannot be seen if the app has a key, none is made: a new key would invalidate every open approval link.
$ErrorActionPreference = 'Stop'
$values = @{}
foreach ($line in azd env get-values) {
  if ($line -match '^(\w+)="?([^"]*)"?$') { $values[$Matches[1]] = $Matches[2] }
}

# The vault has one. Its name is an output of the deployment.
if ($values['KEY_VAULT_NAME'] -or $values['TURNWHEEL_SIGNING_KEYS']) { return }
$isSeen = $false
if (Get-Command az -ErrorAction SilentlyContinue) {
  $PSNativeCommandUseErrorActionPreference = $false
  $vault = az resource list --subscription $values['AZURE_SUBSCRIPTION_ID'] `
    --tag "azd-env-name=$($values['AZURE_ENV_NAME'])" --query "[?type=='Microsoft.KeyVault/vaults'].name | [0]" --output tsv
  $isSeen = $LASTEXITCODE -eq 0
}
if (-not $isSeen) {
  Write-Host 'az cannot list the resources of this deployment, so nobody knows if its vault has a key of approval links. Do one of these:'
  Write-Host '- install az and sign in with `az login`, then again'
  Write-Host '- the app is deployed already: `azd env refresh`, then again'
  Write-Host '- the first deployment: azd env set TURNWHEEL_SIGNING_KEYS, with base64 of 32 random bytes, then again'
  throw 'No key of approval links was made.'
}
if ($vault) {
  throw "This app is deployed already, with its keys in the vault ${vault}: run ``azd env refresh``, then again."
}
$bytes = [byte[]]::new(32)
[Security.Cryptography.RandomNumberGenerator]::Fill($bytes)
azd env set TURNWHEEL_SIGNING_KEYS ([Convert]::ToBase64String($bytes))
