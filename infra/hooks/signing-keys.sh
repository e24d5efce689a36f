#!/bin/sh
# Makes the key of approval links once; the deployment puts it into the vault. A later, empty value keeps the vault's.
set -eu
if ! azd env get-values | grep -q '^TURNWHEEL_SIGNING_KEYS='; then
  azd env set TURNWHEEL_SIGNING_KEYS "$(head -c 32 /dev/urandom | base64)"
fi
