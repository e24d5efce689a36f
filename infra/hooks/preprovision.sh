#!/bin/sh
# What has to be there before the deployment: resource providers, the key of approval links, the app registration.
set -eu
hooks=$(dirname "$0")
"$hooks/providers.sh"
"$hooks/signing-keys.sh"
"$hooks/entra-app.sh"
