// The vault: keys of approval links, and the secrets that agents and webhooks need.

import { roles } from 'roles.bicep'

param name string
param location string
param tags object
param principalId string

@secure()
param signingKeys string

param endpointSubnetId string
param networkId string

var isPrivate = !empty(endpointSubnetId)
var reader = roles['Key Vault Secrets User']
var signingKeysName = 'turnwheel-signing-keys'

resource vault 'Microsoft.KeyVault/vaults@2024-11-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    tenantId: tenant().tenantId
    sku: {
      family: 'A'
      name: 'standard'
    }
    enableRbacAuthorization: true
    enableSoftDelete: true
    // No purge protection: `azd down --purge` and a second try under the same name stay possible. docs/deploy.md, "Deleting".
    publicNetworkAccess: isPrivate ? 'Disabled' : 'Enabled'
    networkAcls: {
      bypass: 'None'
      defaultAction: isPrivate ? 'Deny' : 'Allow'
    }
  }
}

// Written by the deployment itself, so nobody needs a right to the vault's data for it.
resource secret 'Microsoft.KeyVault/vaults/secrets@2024-11-01' = if (!empty(signingKeys)) {
  parent: vault
  name: signingKeysName
  properties: { value: signingKeys }
}

resource reads 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(vault.id, principalId, reader)
  scope: vault
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', reader)
    principalId: principalId
    principalType: 'ServicePrincipal'
  }
}

module endpoint 'privateEndpoint.bicep' = if (isPrivate) {
  name: 'vault-endpoint'
  params: {
    name: 'pe-${name}'
    location: location
    tags: tags
    serviceId: vault.id
    part: 'vault'
    zoneName: 'privatelink.vaultcore.azure.net'
    subnetId: endpointSubnetId
    networkId: networkId
  }
}

output name string = vault.name
// With a slash at the end: without a version the reference then follows the newest one.
output signingKeysUri string = '${vault.properties.vaultUri}secrets/${signingKeysName}/'
