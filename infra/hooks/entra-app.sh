#!/bin/sh
# Makes the app registration whose tokens the app accepts, when TURNWHEEL_AUTH is easyauth and ENTRA_CLIENT_ID is not set.
# Every step may be repeated: a run that failed is finished by the next one.
set -eu
cd "$(dirname "$0")"
value() { azd env get-values | sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p"; }

[ "$(value TURNWHEEL_AUTH)" = easyauth ] || exit 0
[ -z "$(value ENTRA_CLIENT_ID)" ] || exit 0
if ! command -v az >/dev/null; then
  echo "To make the app registration, install az and sign in (\`az login\`); or make one (docs/deploy.md) and set ENTRA_CLIENT_ID." >&2
  exit 1
fi

# The Azure CLI: with it one can try the app at once.
cli=04b07795-8ddb-461a-bbee-02f9e1bf7b46
scope=$(sed -n '/oauth2PermissionScopes/,/]/s/.*"id": "\(.*\)".*/\1/p' entra-app.json)
app=$(value ENTRA_APP_ID)
if [ -z "$app" ]; then
  app=$(az ad app create --display-name "turnwheel-$(value AZURE_ENV_NAME)" --sign-in-audience AzureADMyOrg --query appId --output tsv)
  azd env set ENTRA_APP_ID "$app"
fi
object=$(az ad app show --id "$app" --query id --output tsv)

body=$(mktemp)
trap 'rm -f "$body"' EXIT
change() { az rest --method PATCH --uri "https://graph.microsoft.com/v1.0/applications/$object" --headers Content-Type=application/json --body "@$body"; }
# Version 2 tokens, an identifier URI, the scope access_as_user and the role Turnwheel.Operator.
sed "s/APP_ID/$app/" entra-app.json >"$body"
change
# The scope has to be there before another app may have it.
sed "s/APP_ID/$app/; s/\"preAuthorizedApplications\": \[\]/\"preAuthorizedApplications\": [{\"appId\": \"$cli\", \"delegatedPermissionIds\": [\"$scope\"]}]/" entra-app.json >"$body"
change
# Without a service principal nobody gets a token for the app.
az ad sp show --id "$app" --query id --output tsv >/dev/null 2>&1 || az ad sp create --id "$app" --query id --output tsv

[ -n "$(value ENTRA_ALLOWED_CLIENTS)" ] || azd env set ENTRA_ALLOWED_CLIENTS "$cli"
# Last: from now on this hook does nothing.
azd env set ENTRA_CLIENT_ID "$app"
echo "Callers sign in with the app registration $app. A token to try it: az account get-access-token --scope api://$app/.default --query accessToken --output tsv"
