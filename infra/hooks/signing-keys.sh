#!/bin/sh
# Makes the key of approval links for the first deployment; the deployment puts it into the vault. Later it never makes
# another: a new key would invalidate every open approval link.
set -eu
value() { azd env get-values | sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p"; }

# The vault has one. Its name is an output of the deployment.
[ -z "$(value KEY_VAULT_NAME)" ] || exit 0
[ -z "$(value TURNWHEEL_SIGNING_KEYS)" ] || exit 0
if command -v az >/dev/null; then
  vault=$(az resource list --resource-group "rg-$(value AZURE_ENV_NAME)" --subscription "$(value AZURE_SUBSCRIPTION_ID)" \
    --resource-type Microsoft.KeyVault/vaults --query '[0].name' --output tsv 2>/dev/null || true)
  if [ -n "$vault" ]; then
    echo "This app is deployed already, with its keys in the vault $vault: run \`azd env refresh\`, then again." >&2
    exit 1
  fi
fi
azd env set TURNWHEEL_SIGNING_KEYS "$(head -c 32 /dev/urandom | base64)"
