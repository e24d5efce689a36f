# Makes the app registration whose tokens the app accepts, when TURNWHEEL_AUTH is easyauth and ENTRA_CLIENT_ID is not set.
# Every step may be repeated: a run that failed is finished by the next one.
$ErrorActionPreference = 'Stop'
$PSNativeCommandUseErrorActionPreference = $true
$values = @{}
foreach ($line in azd env get-values) {
  if ($line -match '^(\w+)="?([^"]*)"?$') { $values[$Matches[1]] = $Matches[2] }
}

if ($values['TURNWHEEL_AUTH'] -ne 'easyauth' -or $values['ENTRA_CLIENT_ID']) { return }
if (-not (Get-Command az -ErrorAction SilentlyContinue)) {
  throw 'To make the app registration, install az and sign in (`az login`); or make one (docs/deploy.md) and set ENTRA_CLIENT_ID.'
}

# The Azure CLI: with it one can try the app at once.
$cli = '04b07795-8ddb-461a-bbee-02f9e1bf7b46'
$text = Get-Content -Raw (Join-Path $PSScriptRoot 'entra-app.json')
$scope = ($text | ConvertFrom-Json).api.oauth2PermissionScopes[0].id
$app = $values['ENTRA_APP_ID']
if (-not $app) {
  $app = az ad app create --display-name "turnwheel-$($values['AZURE_ENV_NAME'])" --sign-in-audience AzureADMyOrg --query appId --output tsv
  azd env set ENTRA_APP_ID $app
}
$object = az ad app show --id $app --query id --output tsv

$body = New-TemporaryFile
try {
  # Version 2 tokens, an identifier URI, the scope access_as_user and the role Turnwheel.Operator.
  $text = $text.Replace('APP_ID', $app)
  # The scope has to be there before another app may have it.
  $trusted = $text.Replace('"preAuthorizedApplications": []', "`"preAuthorizedApplications`": [{`"appId`": `"$cli`", `"delegatedPermissionIds`": [`"$scope`"]}]")
  foreach ($step in $text, $trusted) {
    Set-Content -Path $body -Value $step
    az rest --method PATCH --uri "https://graph.microsoft.com/v1.0/applications/$object" --headers Content-Type=application/json --body "@$body"
  }
} finally {
  Remove-Item $body
}
# Without a service principal nobody gets a token for the app.
$PSNativeCommandUseErrorActionPreference = $false
az ad sp show --id $app --query id --output tsv 2>$null | Out-Null
$isThere = $LASTEXITCODE -eq 0
$PSNativeCommandUseErrorActionPreference = $true
if (-not $isThere) { az ad sp create --id $app --query id --output tsv }

if (-not $values['ENTRA_ALLOWED_CLIENTS']) { azd env set ENTRA_ALLOWED_CLIENTS $cli }
# Last: from now on this hook does nothing.
azd env set ENTRA_CLIENT_ID $app
Write-Host "Callers sign in with the app registration $app. A token to try it: az account get-access-token --scope api://$app/.default --query accessToken --output tsv"
