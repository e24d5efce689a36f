// The storage account: the host's own blobs, the queues, the artifacts and the packages that are deployed.

import { roles } from 'roles.bicep'

param name string
param location string
param tags object
param principalId string
param operatorPrincipalId string
param endpointSubnetId string
param networkId string

var isPrivate = !empty(endpointSubnetId)

// The host makes poison queues on demand; here they exist from the start, so that an alert can be set on them. None is
// deployed here.
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

resource account 'Microsoft.Storage/storageAccounts@2024-01-01' = {
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

resource queueService 'Microsoft.Storage/storageAccounts/queueServices@2024-01-01' = {
  parent: account
  name: 'default'
}

resource queue 'Microsoft.Storage/storageAccounts/queueServices/queues@2024-01-01' = [for queueName in queues: {
  parent: queueService
  name: queueName
}]

resource blobService 'Microsoft.Storage/storageAccounts/blobServices@2024-01-01' = {
  parent: account
  name: 'default'
}

resource artifacts 'Microsoft.Storage/storageAccounts/blobServices/containers@2024-01-01' = {
  parent: blobService
  name: artifactContainer
  properties: { publicAccess: 'None' }
}

resource packages 'Microsoft.Storage/storageAccounts/blobServices/containers@2024-01-01' = {
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

resource appRole 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for role in appRoles: {
  name: guid(account.id, principalId, role)
  scope: account
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role)
    principalId: principalId
    principalType: 'ServicePrincipal'
  }
}]

var operatorRoles = [
  roles['Storage Blob Data Contributor']
  roles['Storage Queue Data Contributor']
]

resource operatorRole 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for role in operatorRoles: if (!empty(operatorPrincipalId)) {
  name: guid(account.id, operatorPrincipalId, role)
  scope: account
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role)
    principalId: operatorPrincipalId
  }
}]

var parts = ['blob', 'queue', 'table']

// One at a time: the account refuses a second operation meanwhile.
@batchSize(1)
module endpoint 'privateEndpoint.bicep' = [for part in parts: if (isPrivate) {
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
}]

output name string = account.name
output packageContainer string = packageContainer
