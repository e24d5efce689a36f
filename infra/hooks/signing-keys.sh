#!/bin/sh
# Makes the key of approval links for the first deployment; the deployment puts it into the vault, which keeps the one it has.
# Where it cannot be seen if the app has a key, none is made: a new key would invalidate every open approval link.
set -eu
value() { azd env get-values | sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p"; }

# The vault has one. Its name is an output of the deployment.
[ -z "$(value KEY_VAULT_NAME)" ] || exit 0
[ -z "$(value TURNWHEEL_SIGNING_KEYS)" ] || exit 0
if ! command -v az >/dev/null || ! vault=$(az resource list --subscription "$(value AZURE_SUBSCRIPTION_ID)" \
  --tag "azd-env-name=$(value AZURE_ENV_NAME)" --query "[?type=='Microsoft.KeyVault/vaults'].name | [0]" --output tsv); then
  echo "az cannot list the resources of this deployment, so nobody knows if its vault has a key of approval links. Do one of these:" >&2
  echo "- install az and sign in with \`az login\`, then again" >&2
  echo "- the app is deployed already: \`azd env refresh\`, then again" >&2
  echo "- the first deployment: azd env set TURNWHEEL_SIGNING_KEYS \"\$(head -c 32 /dev/urandom | base64)\", then again" >&2
  exit 1
fi
if [ -n "$vault" ]; then
  echo "This app is deployed already, with its keys in the vault $vault: run \`azd env refresh\`, then again." >&2
  exit 1
fi
azd env set TURNWHEEL_SIGNING_KEYS "$(head -c 32 /dev/urandom | base64)"
