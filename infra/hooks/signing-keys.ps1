# Makes the key of approval links once; the deployment puts it into the vault. A later, empty value keeps the vault's.
$ErrorActionPreference = 'Stop'
if (-not (azd env get-values | Select-String -Quiet '^TURNWHEEL_SIGNING_KEYS=')) {
  $bytes = [byte[]]::new(32)
  [Security.Cryptography.RandomNumberGenerator]::Fill($bytes)
  azd env set TURNWHEEL_SIGNING_KEYS ([Convert]::ToBase64String($bytes))
}
