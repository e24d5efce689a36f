// The conversation store: serverless, one region that is written to, no keys.

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
var database = 'turnwheel'

// As crates/azure/src/cosmos.rs has them. Indexed is what queries filter and order by; documents owe nothing when they have no
// `due`, and live until they are deleted unless they say otherwise themselves.
var containers = [
  {
    name: 'conversations'
    keyPaths: ['/owner', '/conversationId']
    keyKind: 'MultiHash'
    indexedPaths: [
      '/tenant/?'
      '/owner/?'
      '/conversationId/?'
      '/id/?'
      '/kind/?'
      '/due/?'
      '/createdAt/?'
      '/state/?'
      '/searchText/?'
      '/lastEntry/?'
    ]
    defaultTtl: -1
  }
  {
    name: 'scopes'
    keyPaths: ['/tenant']
    keyKind: 'Hash'
    indexedPaths: [
      '/tenant/?'
      '/id/?'
      '/kind/?'
      '/due/?'
    ]
    defaultTtl: -1
  }
]

resource account 'Microsoft.DocumentDB/databaseAccounts@2025-10-15' = {
  name: name
  location: location
  tags: tags
  kind: 'GlobalDocumentDB'
  properties: {
    databaseAccountOfferType: 'Standard'
    capabilities: [{ name: 'EnableServerless' }]
    locations: [
      {
        locationName: location
        failoverPriority: 0
      }
    ]
    enableMultipleWriteLocations: false
    consistencyPolicy: { defaultConsistencyLevel: 'Session' }
    disableLocalAuth: true
    disableKeyBasedMetadataWriteAccess: true
    minimalTlsVersion: 'Tls12'
    publicNetworkAccess: isPrivate ? 'Disabled' : 'Enabled'
    backupPolicy: {
      type: 'Continuous'
      continuousModeProperties: { tier: 'Continuous7Days' }
    }
  }
}

resource sqlDatabase 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases@2025-10-15' = {
  parent: account
  name: database
  properties: {
    resource: { id: database }
  }
}

// The account does one operation at a time and refuses others meanwhile (412): hence this order down to the endpoint.
@batchSize(1)
resource sqlContainer 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers@2025-10-15' = [
  for container in containers: {
    parent: sqlDatabase
    name: container.name
    properties: {
      resource: {
        id: container.name
        partitionKey: {
          paths: container.keyPaths
          kind: container.keyKind
          version: 2
        }
        defaultTtl: container.defaultTtl
        indexingPolicy: {
          automatic: true
          indexingMode: 'consistent'
          includedPaths: map(container.indexedPaths, indexed => { path: indexed })
          excludedPaths: [{ path: '/*' }]
        }
      }
    }
  }
]

// Cosmos DB has roles of its own for data: reading and writing documents, not the account, its keys or its containers.
var contributor = roles['Cosmos DB Built-in Data Contributor']

resource appRole 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2025-10-15' = {
  parent: account
  dependsOn: [sqlContainer]
  name: guid(account.id, principalId, contributor)
  properties: {
    roleDefinitionId: '${account.id}/sqlRoleDefinitions/${contributor}'
    principalId: principalId
    scope: account.id
  }
}

resource operatorRole 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2025-10-15' = if (!empty(operatorPrincipalId)) {
  parent: account
  dependsOn: [appRole]
  name: guid(account.id, operatorPrincipalId, contributor)
  properties: {
    roleDefinitionId: '${account.id}/sqlRoleDefinitions/${contributor}'
    principalId: operatorPrincipalId
    scope: account.id
  }
}

// Changes of the account, and its largest partitions. Not every request: that would be a line for each.
resource diagnostics 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'diagnostics'
  scope: account
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        category: 'ControlPlaneRequests'
        enabled: true
      }
      {
        category: 'PartitionKeyStatistics'
        enabled: true
      }
    ]
  }
}

module endpoint 'privateEndpoint.bicep' = if (isPrivate) {
  name: 'cosmos-endpoint'
  // Both: the second is not there where nobody is the operator.
  dependsOn: [appRole, operatorRole]
  params: {
    name: 'pe-${name}'
    location: location
    tags: tags
    serviceId: account.id
    part: 'Sql'
    zoneName: 'privatelink.documents.azure.com'
    subnetId: endpointSubnetId
    networkId: networkId
  }
}

output id string = account.id
output endpoint string = account.properties.documentEndpoint
output database string = database
