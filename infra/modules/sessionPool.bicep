// Optional: a session pool in which agents run shell commands. Sessions have no network.

import { roles } from 'roles.bicep'
import { Tags } from 'types.bicep'

param name string
param location string
param tags Tags
param principalId string
param sessionsMax int

var executor = roles['Azure ContainerApps Session Executor']

resource pool 'Microsoft.App/sessionPools@2025-01-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    poolManagementType: 'Dynamic'
    containerType: 'PythonLTS'
    scaleConfiguration: { maxConcurrentSessions: sessionsMax }
    dynamicPoolConfiguration: {
      lifecycleConfiguration: {
        lifecycleType: 'Timed'
        // Short: a session that waits is billed, and nothing depends on it.
        cooldownPeriodInSeconds: 300
      }
    }
    sessionNetworkConfiguration: { status: 'EgressDisabled' }
  }
}

resource executes 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(pool.id, principalId, executor)
  scope: pool
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', executor)
    principalId: principalId
    principalType: 'ServicePrincipal'
  }
}

output endpoint string = pool.properties.poolManagementEndpoint
