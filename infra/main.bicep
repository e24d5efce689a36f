// Everything Turnwheel needs in Azure. docs/deploy.md says how to deploy it, what it costs and what each role is for.
targetScope = 'subscription'

import { AppSettings } from 'modules/types.bicep'

@minLength(1)
@maxLength(64)
@description('The name of this deployment; resources are named after it, and azd finds them by it.')
param environmentName string

@minLength(1)
@description('A region with Flex Consumption: az functionapp list-flexconsumption-locations')
@metadata({ azd: { type: 'location' } })
param location string

@description('Empty: rg- and the name of the deployment.')
param resourceGroupName string = ''

@allowed(['keys', 'easyauth', 'header'])
@description('How callers are known. easyauth needs entraClientId; the package has to be staged with the same TURNWHEEL_AUTH.')
param auth string = 'keys'

@description('The client id of an app registration. With it the platform signs callers in.')
param entraClientId string = ''

@description('Client ids of other apps whose tokens are accepted, separated by commas.')
param entraAllowedClients string = ''

@description('Further audiences that tokens may have, separated by commas. The client id and api:// with the client id are always accepted.')
param entraAudiences string = ''

@description('Origins of web pages that may call the app from a browser, separated by commas, or *. Empty: its own alone.')
param corsOrigins string = ''

@allowed(['on', 'off'])
@description('The web console; the package has to be staged with the same TURNWHEEL_CONSOLE.')
param console string = 'off'

@secure()
@description('Keys of approval links: base64 of at least 32 bytes each, separated by spaces. Empty: the vault keeps what it has.')
param signingKeys string = ''

@description('The model of agents that name none: a model id, a model id per tier, or scripted.')
param model string = ''

@description('The endpoint of an Azure OpenAI resource that exists; the app needs the role Cognitive Services OpenAI User there.')
param openAiEndpoint string = ''

@description('Makes an Azure OpenAI resource with one deployment.')
param deployModel bool = false

@description('New subscriptions get a model for about 12 months after its release: docs/deploy.md has the command that lists them.')
param deployedModelName string = 'gpt-5.4-mini'
param deployedModelVersion string = '2026-03-17'
param deployedModelSku string = 'GlobalStandard'

@description('In thousands of tokens per minute.')
param deployedModelCapacity int = 50

@description('The region of the model. Empty: that of the app.')
param modelLocation string = ''

@description('Makes a session pool, in which agents may run shell commands.')
param deploySessionPool bool = false

@minValue(1)
@maxValue(600)
@description('Sessions of the pool at a time; each conversation that runs commands has one.')
param sessionsMax int = 20

@description('The region of the session pool. Empty: that of the app.')
param sessionPoolLocation string = ''

@description('The address people reach the app at, if it is not the app\'s own.')
param publicUrl string = ''

@description('More app settings: those your agents name, webhooks. Secrets as Key Vault references.')
param extraSettings AppSettings = {}

@description('Storage, Cosmos DB, the vault and the model are reached through private endpoints alone.')
param privateNetwork bool = false

@minValue(1)
@maxValue(1000)
@description('Instances of each function at most.')
param instancesMax int = 100

@allowed([512, 2048, 4096])
@description('Memory of an instance. 512 MB have a quarter of a core: see docs/deploy.md, "Scale".')
param instanceMemoryMB int = 512

@minValue(0)
@maxValue(1000)
@description('Instances that are always up for HTTP. Each is billed all month.')
param alwaysReadyHttp int = 0

@minValue(0)
@maxValue(1000)
@description('Instances that are always up for the function turn. Each is billed all month.')
param alwaysReadyTurn int = 0

@allowed(['Recreate', 'RollingUpdate'])
@description('How a deployment replaces running instances. Recreate ends them with their work; RollingUpdate (preview) lets executions finish.')
param updateStrategy string = 'Recreate'

@description('Who may look after queues and conversations from outside with rebuild-queue and redrive: the object id of a person. Empty: nobody.')
param operatorPrincipalId string = ''

@description('Who gets an e-mail when something needs attention. Empty: no alert rules.')
param alertEmail string = ''

var token = toLower(uniqueString(subscription().id, environmentName, location))
var tags = { 'azd-env-name': environmentName }
var name = 'func-${token}'

resource group 'Microsoft.Resources/resourceGroups@2025-04-01' = {
  name: empty(resourceGroupName) ? 'rg-${environmentName}' : resourceGroupName
  location: location
  tags: tags
}

module identity 'modules/identity.bicep' = {
  name: 'identity'
  scope: group
  params: {
    name: 'id-${token}'
    location: location
    tags: tags
  }
}

module monitoring 'modules/monitoring.bicep' = {
  name: 'monitoring'
  scope: group
  params: {
    token: token
    location: location
    tags: tags
    principalId: identity.outputs.principalId
  }
}

module network 'modules/network.bicep' = if (privateNetwork) {
  name: 'network'
  scope: group
  params: {
    name: 'vnet-${token}'
    location: location
    tags: tags
  }
}

var endpointSubnetId = privateNetwork ? network!.outputs.endpointSubnetId : ''
var networkId = privateNetwork ? network!.outputs.networkId : ''

module storage 'modules/storage.bicep' = {
  name: 'storage'
  scope: group
  params: {
    name: 'st${token}'
    location: location
    tags: tags
    principalId: identity.outputs.principalId
    operatorPrincipalId: operatorPrincipalId
    endpointSubnetId: endpointSubnetId
    networkId: networkId
    workspaceId: monitoring.outputs.workspaceId
  }
}

module cosmos 'modules/cosmos.bicep' = {
  name: 'cosmos'
  scope: group
  params: {
    name: 'cosmos-${token}'
    location: location
    tags: tags
    principalId: identity.outputs.principalId
    operatorPrincipalId: operatorPrincipalId
    endpointSubnetId: endpointSubnetId
    networkId: networkId
    workspaceId: monitoring.outputs.workspaceId
  }
}

module vault 'modules/vault.bicep' = {
  name: 'vault'
  scope: group
  params: {
    name: 'kv-${token}'
    location: location
    tags: tags
    principalId: identity.outputs.principalId
    signingKeys: signingKeys
    endpointSubnetId: endpointSubnetId
    networkId: networkId
    workspaceId: monitoring.outputs.workspaceId
  }
}

module openAi 'modules/openAi.bicep' = if (deployModel) {
  name: 'openAi'
  scope: group
  params: {
    name: 'oai-${token}'
    location: empty(modelLocation) ? location : modelLocation
    endpointLocation: location
    tags: tags
    principalId: identity.outputs.principalId
    modelName: deployedModelName
    modelVersion: deployedModelVersion
    modelSku: deployedModelSku
    modelCapacity: deployedModelCapacity
    endpointSubnetId: endpointSubnetId
    networkId: networkId
  }
}

module sessionPool 'modules/sessionPool.bicep' = if (deploySessionPool) {
  name: 'sessionPool'
  scope: group
  params: {
    name: 'sp-${token}'
    location: empty(sessionPoolLocation) ? location : sessionPoolLocation
    tags: tags
    principalId: identity.outputs.principalId
    sessionsMax: sessionsMax
  }
}

module functionApp 'modules/functionApp.bicep' = {
  name: 'functionApp'
  scope: group
  params: {
    name: name
    location: location
    tags: union(tags, { 'azd-service-name': 'turnwheel' })
    identityId: identity.outputs.id
    identityClientId: identity.outputs.clientId
    applicationInsightsConnection: monitoring.outputs.connectionString
    storageName: storage.outputs.name
    packageContainer: storage.outputs.packageContainer
    cosmosEndpoint: cosmos.outputs.endpoint
    cosmosDatabase: cosmos.outputs.database
    signingKeysUri: vault.outputs.signingKeysUri
    auth: auth
    entraClientId: entraClientId
    entraAllowedClients: entraAllowedClients
    entraAudiences: entraAudiences
    corsOrigins: corsOrigins
    console: console
    // Without a model the demo model answers, so that the first deployment can be tried.
    model: empty(model) ? (deployModel ? deployedModelName : 'scripted') : model
    openAiEndpoint: deployModel ? openAi!.outputs.endpoint : openAiEndpoint
    publicUrl: publicUrl
    shellPool: deploySessionPool ? sessionPool!.outputs.endpoint : ''
    extraSettings: extraSettings
    subnetId: privateNetwork ? network!.outputs.appSubnetId : ''
    instancesMax: instancesMax
    instanceMemoryMB: instanceMemoryMB
    alwaysReadyHttp: alwaysReadyHttp
    alwaysReadyTurn: alwaysReadyTurn
    updateStrategy: updateStrategy
  }
}

module alerts 'modules/alerts.bicep' = if (!empty(alertEmail)) {
  name: 'alerts'
  scope: group
  params: {
    token: token
    location: location
    tags: tags
    email: alertEmail
    insightsId: monitoring.outputs.insightsId
    cosmosId: cosmos.outputs.id
    storageId: storage.outputs.id
  }
}

output AZURE_LOCATION string = location
output AZURE_RESOURCE_GROUP string = group.name
output SERVICE_TURNWHEEL_NAME string = functionApp.outputs.name
output SERVICE_TURNWHEEL_URI string = functionApp.outputs.uri
output COSMOS_ACCOUNT_ENDPOINT string = cosmos.outputs.endpoint
output STORAGE_ACCOUNT_NAME string = storage.outputs.name
output KEY_VAULT_NAME string = vault.outputs.name
output IDENTITY_PRINCIPAL_ID string = identity.outputs.principalId
