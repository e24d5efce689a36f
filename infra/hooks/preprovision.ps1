# What has to be there before the deployment: resource providers, the key of approval links, the app registration.
$ErrorActionPreference = 'Stop'
& (Join-Path $PSScriptRoot 'providers.ps1')
& (Join-Path $PSScriptRoot 'signing-keys.ps1')
& (Join-Path $PSScriptRoot 'entra-app.ps1')
