#!/bin/sh
# Registers the resource provider Microsoft.App, to which the app's subnet is delegated. Nothing else registers it: the
# deployment has no resource of it.
set -eu
value() { azd env get-values | sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p"; }

[ "$(value PRIVATE_NETWORK)" = true ] || exit 0
if ! command -v az >/dev/null; then
  echo "PRIVATE_NETWORK needs the resource provider Microsoft.App, and az is not installed to register it." >&2
  echo "If the deployment fails: az provider register --namespace Microsoft.App --wait" >&2
  exit 0
fi
subscription=$(value AZURE_SUBSCRIPTION_ID)
state=$(az provider show --namespace Microsoft.App --subscription "$subscription" --query registrationState --output tsv)
if [ "$state" != Registered ]; then
  echo "Registering the resource provider Microsoft.App: this takes a minute or two."
  az provider register --namespace Microsoft.App --subscription "$subscription" --wait
fi
