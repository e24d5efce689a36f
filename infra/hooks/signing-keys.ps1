# Makes the key of approval links for the first deployment; the deployment puts it into the vault. Later it never makes
# another: a new key would invalidate every open approval link.
$ErrorActionPreference = 'Stop'
$values = @{}
foreach ($line in azd env get-values) {
  if ($line -match '^(\w+)="?([^"]*)"?$') { $values[$Matches[1]] = $Matches[2] }
}

# The vault has one. Its name is an output of the deployment.
if ($values['KEY_VAULT_NAME'] -or $values['TURNWHEEL_SIGNING_KEYS']) { return }
if (Get-Command az -ErrorAction SilentlyContinue) {
  $vault = az resource list --resource-group "rg-$($values['AZURE_ENV_NAME'])" --subscription $values['AZURE_SUBSCRIPTION_ID'] `
    --resource-type Microsoft.KeyVault/vaults --query '[0].name' --output tsv 2>$null
  if ($vault) {
    throw "This app is deployed already, with its keys in the vault ${vault}: run ``azd env refresh``, then again."
  }
}
$bytes = [byte[]]::new(32)
[Security.Cryptography.RandomNumberGenerator]::Fill($bytes)
azd env set TURNWHEEL_SIGNING_KEYS ([Convert]::ToBase64String($bytes))
