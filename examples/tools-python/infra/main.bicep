// A function app with the tools. Only the identity of the Turnwheel app may call it, with a token of Entra.

@description('Name of the app, unique in Azure.')
param name string
param location string = resourceGroup().location
@description('Client id of the app registration that stands for the tools.')
param entraClientId string
@description('Client id of the identity of the Turnwheel app: `AZURE_CLIENT_ID` among its settings.')
param callerClientId string

var storageName = 'st${uniqueString(resourceGroup().id, name)}'
var packageContainer = 'packages'
// Storage Blob Data Owner: the host writes its leases and reads the package.
var blobOwner = 'b7e6dc6d-f1e8-4753-8033-0f276bb0955b'

resource storage 'Microsoft.Storage/storageAccounts@2025-06-01' = {
  name: storageName
  location: location
  kind: 'StorageV2'
  sku: { name: 'Standard_LRS' }
  properties: {
    allowBlobPublicAccess: false
    allowSharedKeyAccess: false
    minimumTlsVersion: 'TLS1_2'
  }
}

resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2025-06-01' = {
  parent: storage
  name: 'default'
}

resource packages 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-06-01' = {
  parent: blobs
  name: packageContainer
}

resource plan 'Microsoft.Web/serverfarms@2025-03-01' = {
  name: 'plan-${name}'
  location: location
  kind: 'functionapp'
  sku: {
    name: 'FC1'
    tier: 'FlexConsumption'
  }
  properties: { reserved: true }
}

resource app 'Microsoft.Web/sites@2025-03-01' = {
  name: name
  location: location
  kind: 'functionapp,linux'
  identity: { type: 'SystemAssigned' }
  properties: {
    serverFarmId: plan.id
    httpsOnly: true
    functionAppConfig: {
      deployment: {
        storage: {
          type: 'blobContainer'
          value: '${storage.properties.primaryEndpoints.blob}${packageContainer}'
          authentication: { type: 'SystemAssignedIdentity' }
        }
      }
      runtime: {
        name: 'python'
        version: '3.12'
      }
      scaleAndConcurrency: {
        maximumInstanceCount: 40
        instanceMemoryMB: 2048
      }
    }
    siteConfig: { minTlsVersion: '1.2' }
  }
}

resource role 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(storage.id, name, blobOwner)
  scope: storage
  properties: {
    principalId: app.identity.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', blobOwner)
  }
}

resource settings 'Microsoft.Web/sites/config@2025-03-01' = {
  parent: app
  name: 'appsettings'
  properties: {
    AzureWebJobsStorage__accountName: storage.name
    AzureWebJobsStorage__credential: 'managedidentity'
    AzureWebJobsFeatureFlags: 'EnableMcpCustomHandlerPreview'
    // Relative to the folder of the app, in which the host starts the program.
    PYTHONPATH: '.python_packages/lib/site-packages'
  }
}

resource signIn 'Microsoft.Web/sites/config@2025-03-01' = {
  parent: app
  name: 'authsettingsV2'
  properties: {
    platform: { enabled: true }
    globalValidation: {
      requireAuthentication: true
      unauthenticatedClientAction: 'Return401'
    }
    identityProviders: {
      azureActiveDirectory: {
        enabled: true
        registration: {
          clientId: entraClientId
          openIdIssuer: '${environment().authentication.loginEndpoint}${tenant().tenantId}/v2.0'
        }
        validation: {
          // Version 2 tokens name the client id, version 1 tokens the identifier URI.
          allowedAudiences: [entraClientId, 'api://${entraClientId}']
          defaultAuthorizationPolicy: { allowedApplications: [callerClientId] }
        }
      }
    }
    login: { tokenStore: { enabled: false } }
  }
}

output url string = 'https://${app.properties.defaultHostName}/mcp'
output scope string = 'api://${entraClientId}/.default'
