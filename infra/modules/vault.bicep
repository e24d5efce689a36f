// The vault: keys of approval links, and the secrets that agents and webhooks need.

import { roles } from 'roles.bicep'
import { Tags } from 'types.bicep'

param name string
param location string
param tags Tags
param principalId string

@secure()
param signingKeys string

param endpointSubnetId string
param networkId string
param workspaceId string

var isPrivate = !empty(endpointSubnetId)
var reader = roles['Key Vault Secrets User']
var signingKeysName = 'turnwheel-signing-keys'

resource vault 'Microsoft.KeyVault/vaults@2025-05-01' = {
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

// Written by the deployment itself, so nobody needs a right to the vault's data for it. Only once: another key would
// invalidate every open approval link.
@onlyIfNotExists()
resource secret 'Microsoft.KeyVault/vaults/secrets@2025-05-01' = if (!empty(signingKeys)) {
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

// Who read or changed a secret.
resource audit 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'audit'
  scope: vault
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        category: 'AuditEvent'
        enabled: true
      }
    ]
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
