// The storage account: the host's own blobs, the queues, the artifacts and the packages that are deployed.

import { roles } from 'roles.bicep'
import { Tags } from 'types.bicep'

param name string
param location string
param tags Tags
param principalId string
param operatorPrincipalId string
param endpointSubnetId string
param networkId string
param workspaceId string

var isPrivate = !empty(endpointSubnetId)

// The host makes poison queues on demand; here they exist from the start, so that nothing fails that reads them.
var queues = [
  'agent-prompts'
  'agent-prompts-poison'
  'agent-turns'
  'agent-turns-poison'
  'agent-notify'
  'agent-notify-poison'
]
var artifactContainer = 'agent-artifacts'
var packageContainer = 'app-packages'

resource account 'Microsoft.Storage/storageAccounts@2025-06-01' = {
  name: name
  location: location
  tags: tags
  kind: 'StorageV2'
  sku: { name: 'Standard_LRS' }
  properties: {
    allowSharedKeyAccess: false
    allowBlobPublicAccess: false
    defaultToOAuthAuthentication: true
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
    publicNetworkAccess: isPrivate ? 'Disabled' : 'Enabled'
    networkAcls: {
      bypass: 'None'
      defaultAction: isPrivate ? 'Deny' : 'Allow'
    }
  }
}

resource queueService 'Microsoft.Storage/storageAccounts/queueServices@2025-06-01' = {
  parent: account
  name: 'default'
}

resource queue 'Microsoft.Storage/storageAccounts/queueServices/queues@2025-06-01' = [
  for queueName in queues: {
    parent: queueService
    name: queueName
  }
]

// A blob that was deleted or overwritten comes back within these days: as long as the database goes back.
var keptDays = 7

resource blobService 'Microsoft.Storage/storageAccounts/blobServices@2025-06-01' = {
  parent: account
  name: 'default'
  properties: {
    isVersioningEnabled: true
    deleteRetentionPolicy: {
      enabled: true
      days: keptDays
    }
    containerDeleteRetentionPolicy: {
      enabled: true
      days: keptDays
    }
  }
}

// Earlier versions of a blob would be kept for ever.
resource lifecycle 'Microsoft.Storage/storageAccounts/managementPolicies@2025-06-01' = {
  parent: account
  name: 'default'
  dependsOn: [blobService]
  properties: {
    policy: {
      rules: [
        {
          name: 'earlier-versions'
          enabled: true
          type: 'Lifecycle'
          definition: {
            filters: { blobTypes: ['blockBlob', 'appendBlob'] }
            actions: {
              version: { delete: { daysAfterCreationGreaterThan: keptDays } }
            }
          }
        }
      ]
    }
  }
}

// Which blobs were deleted, and when: what a restore has to bring back.
resource deletions 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'deletions'
  scope: blobService
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        category: 'StorageDelete'
        enabled: true
      }
    ]
  }
}

resource artifacts 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-06-01' = {
  parent: blobService
  name: artifactContainer
  properties: { publicAccess: 'None' }
}

resource packages 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-06-01' = {
  parent: blobService
  name: packageContainer
  properties: { publicAccess: 'None' }
}

// Blob: the host's locks, timers and keys need the owner's rights; artifacts and packages need less and are in it.
// Queue: triggers take and delete, Turnwheel sends and makes. Table: the host's own diagnostic events.
var appRoles = [
  roles['Storage Blob Data Owner']
  roles['Storage Queue Data Contributor']
  roles['Storage Table Data Contributor']
]

resource appRole 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for role in appRoles: {
    name: guid(account.id, principalId, role)
    scope: account
    properties: {
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role)
      principalId: principalId
      principalType: 'ServicePrincipal'
    }
  }
]

var operatorRoles = [
  roles['Storage Blob Data Contributor']
  roles['Storage Queue Data Contributor']
]

resource operatorRole 'Microsoft.Authorization/roleAssignments@2022-04-01' = [
  for role in operatorRoles: if (!empty(operatorPrincipalId)) {
    name: guid(account.id, operatorPrincipalId, role)
    scope: account
    properties: {
      roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role)
      principalId: operatorPrincipalId
    }
  }
]

var parts = ['blob', 'queue', 'table']

// One at a time: the account refuses a second operation meanwhile.
@batchSize(1)
module endpoint 'privateEndpoint.bicep' = [
  for part in parts: if (isPrivate) {
    name: 'storage-${part}'
    params: {
      name: 'pe-${name}-${part}'
      location: location
      tags: tags
      serviceId: account.id
      part: part
      zoneName: 'privatelink.${part}.${environment().suffixes.storage}'
      subnetId: endpointSubnetId
      networkId: networkId
    }
  }
]

output id string = account.id
output name string = account.name
output packageContainer string = packageContainer
