// The app: a Flex Consumption plan and a custom handler that has an identity and no key.

import { AppSettings, Tags } from 'types.bicep'

param name string
param location string
param tags Tags
param identityId string
param identityClientId string
param applicationInsightsConnection string
param storageName string
param packageContainer string
param cosmosEndpoint string
param cosmosDatabase string
param signingKeysUri string
param auth string
param entraClientId string
param entraAllowedClients string
param entraAudiences string
param corsOrigins string
param console string
param model string
param openAiEndpoint string
param publicUrl string
param shellPool string
param extraSettings AppSettings
param subnetId string
param instancesMax int
param instanceMemoryMB int
param alwaysReadyHttp int
param alwaysReadyTurn int
param updateStrategy string

var isSignInOn = auth == 'easyauth' && !empty(entraClientId)
var storageSuffix = environment().suffixes.storage

var storageAddresses = {
  AzureWebJobsStorage__blobServiceUri: 'https://${storageName}.blob.${storageSuffix}'
  AzureWebJobsStorage__queueServiceUri: 'https://${storageName}.queue.${storageSuffix}'
  AzureWebJobsStorage__tableServiceUri: 'https://${storageName}.table.${storageSuffix}'
}
// By name: with addresses alone a cold start of the host can fail (Azure/azure-functions-host#11787). The name means
// core.windows.net, so other clouds have the addresses.
#disable-next-line no-hardcoded-env-urls
var storageSettings = storageSuffix == 'core.windows.net' ? { AzureWebJobsStorage__accountName: storageName } : storageAddresses

// No FUNCTIONS_WORKER_RUNTIME: on this plan the runtime is a property of the app, and the setting is refused.
var baseSettings = {
  AzureWebJobsStorage__credential: 'managedidentity'
  AzureWebJobsStorage__clientId: identityClientId
  COSMOS__accountEndpoint: cosmosEndpoint
  COSMOS__database: cosmosDatabase
  COSMOS__credential: 'managedidentity'
  COSMOS__clientId: identityClientId
  // For the model and for tools that ask for a token.
  AZURE_CLIENT_ID: identityClientId
  APPLICATIONINSIGHTS_CONNECTION_STRING: applicationInsightsConnection
  APPLICATIONINSIGHTS_AUTHENTICATION_STRING: 'ClientId=${identityClientId};Authorization=AAD'
  TURNWHEEL_AUTH: auth
  TURNWHEEL_CONSOLE: console
  TURNWHEEL_MODEL: model
  TURNWHEEL_SIGNING_KEYS: '@Microsoft.KeyVault(SecretUri=${signingKeysUri})'
}
var modelSettings = empty(openAiEndpoint) ? {} : { AZURE_OPENAI_ENDPOINT: openAiEndpoint }
// HTTP functions share instances; every other function has instances of its own.
var alwaysReady = [
  { name: 'http', instanceCount: alwaysReadyHttp }
  { name: 'function:turn', instanceCount: alwaysReadyTurn }
]
var allowedClients = empty(entraAllowedClients) ? [] : split(entraAllowedClients, ',')
var audiences = empty(entraAudiences) ? [] : split(entraAudiences, ',')
// The platform answers a browser's preflight requests; the app refuses changes from pages of other origins.
var origins = map(split(corsOrigins, ','), origin => trim(origin))
var originSettings = empty(corsOrigins) ? {} : { TURNWHEEL_CORS_ORIGINS: corsOrigins }
var anonymousPaths = ['/admin/*', '/api/health', '/api/approvals/*', '/api/openapi.json', '/api/openapi-3.0.json']
// The page of the console has no data; each of its requests needs the sign-in.
var consolePaths = ['/api/console', '/api/console/*']
var addressSettings = empty(publicUrl) ? {} : { TURNWHEEL_PUBLIC_URL: publicUrl }
var shellSettings = empty(shellPool) ? {} : { TURNWHEEL_SHELL_POOL: shellPool }

resource plan 'Microsoft.Web/serverfarms@2025-03-01' = {
  name: 'plan-${name}'
  location: location
  tags: tags
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
  tags: tags
  kind: 'functionapp,linux'
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: { '${identityId}': {} }
  }
  properties: {
    serverFarmId: plan.id
    httpsOnly: true
    keyVaultReferenceIdentity: identityId
    virtualNetworkSubnetId: empty(subnetId) ? null : subnetId
    functionAppConfig: {
      deployment: {
        storage: {
          type: 'blobContainer'
          value: 'https://${storageName}.blob.${storageSuffix}/${packageContainer}'
          authentication: {
            type: 'UserAssignedIdentity'
            userAssignedIdentityResourceId: identityId
          }
        }
      }
      runtime: {
        name: 'custom'
        version: '1.0'
      }
      scaleAndConcurrency: {
        maximumInstanceCount: instancesMax
        instanceMemoryMB: instanceMemoryMB
        alwaysReady: filter(alwaysReady, group => group.instanceCount > 0)
        // Streams of events mostly wait, and a waiting one needs next to nothing.
        triggers: { http: { perInstanceConcurrency: 100 } }
      }
      siteUpdateStrategy: { type: updateStrategy }
    }
    siteConfig: {
      minTlsVersion: '1.2'
      cors: empty(corsOrigins) ? null : { allowedOrigins: origins }
    }
  }
}

resource settings 'Microsoft.Web/sites/config@2025-03-01' = {
  parent: app
  name: 'appsettings'
  properties: union(storageSettings, baseSettings, modelSettings, originSettings, addressSettings, shellSettings, extraSettings)
}

// The tools publish with tokens; nobody needs the passwords.
resource ftp 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2025-03-01' = {
  parent: app
  name: 'ftp'
  properties: { allow: false }
}

resource scm 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2025-03-01' = {
  parent: app
  name: 'scm'
  properties: { allow: false }
}

// Tokens in the Authorization header; nobody signs in at a page, so no client secret is needed. A probe has no token,
// and a link in a message carries its own proof. /admin has the host's own keys, which the tools that deploy send.
resource signIn 'Microsoft.Web/sites/config@2025-03-01' = if (isSignInOn) {
  parent: app
  name: 'authsettingsV2'
  properties: {
    platform: { enabled: true }
    globalValidation: {
      requireAuthentication: true
      unauthenticatedClientAction: 'Return401'
      excludedPaths: union(anonymousPaths, console == 'on' ? consolePaths : [])
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
          allowedAudiences: union([entraClientId, 'api://${entraClientId}'], audiences)
          defaultAuthorizationPolicy: {
            allowedApplications: union([entraClientId], allowedClients)
          }
        }
      }
    }
    login: { tokenStore: { enabled: false } }
  }
}

output name string = app.name
output uri string = 'https://${app.properties.defaultHostName}'
