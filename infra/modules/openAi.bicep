// A model of one's own: an Azure OpenAI resource with one deployment, used by the app's identity alone.

import { roles } from 'roles.bicep'
import { Tags } from 'types.bicep'

param name string
param location string
param endpointLocation string
param tags Tags
param principalId string
param modelName string
param modelVersion string
param modelSku string
param modelCapacity int
param endpointSubnetId string
param networkId string

var isPrivate = !empty(endpointSubnetId)
var user = roles['Cognitive Services OpenAI User']

resource account 'Microsoft.CognitiveServices/accounts@2025-06-01' = {
  name: name
  location: location
  tags: tags
  kind: 'OpenAI'
  sku: { name: 'S0' }
  properties: {
    // Tokens are given out only under a name of one's own.
    customSubDomainName: name
    disableLocalAuth: true
    publicNetworkAccess: isPrivate ? 'Disabled' : 'Enabled'
    networkAcls: { defaultAction: isPrivate ? 'Deny' : 'Allow' }
  }
}

// Under the model's own name, so that no map of names is needed.
resource modelDeployment 'Microsoft.CognitiveServices/accounts/deployments@2025-06-01' = {
  parent: account
  name: modelName
  sku: {
    name: modelSku
    capacity: modelCapacity
  }
  properties: {
    model: {
      format: 'OpenAI'
      name: modelName
      version: modelVersion
    }
  }
}

resource uses 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(account.id, principalId, user)
  scope: account
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', user)
    principalId: principalId
    principalType: 'ServicePrincipal'
  }
}

// After the deployment: while the account is busy with one it refuses the other.
module endpoint 'privateEndpoint.bicep' = if (isPrivate) {
  name: 'openai-endpoint'
  dependsOn: [modelDeployment]
  params: {
    name: 'pe-${name}'
    // That of the network; the model may be in another region.
    location: endpointLocation
    tags: tags
    serviceId: account.id
    part: 'account'
    zoneName: 'privatelink.openai.azure.com'
    subnetId: endpointSubnetId
    networkId: networkId
  }
}

output endpoint string = account.properties.endpoint
