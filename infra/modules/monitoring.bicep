// Application Insights and the workspace that keeps its data.

import { roles } from 'roles.bicep'
import { Tags } from 'types.bicep'

param token string
param location string
param tags Tags
param principalId string

var publisher = roles['Monitoring Metrics Publisher']

resource workspace 'Microsoft.OperationalInsights/workspaces@2025-07-01' = {
  name: 'log-${token}'
  location: location
  tags: tags
  properties: {
    sku: { name: 'PerGB2018' }
    retentionInDays: 30
  }
}

resource insights 'Microsoft.Insights/components@2020-02-02' = {
  name: 'appi-${token}'
  location: location
  tags: tags
  kind: 'web'
  properties: {
    Application_Type: 'web'
    WorkspaceResourceId: workspace.id
    // The connection string names the place and is no key: only the identity may write.
    DisableLocalAuth: true
  }
}

resource publishes 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(insights.id, principalId, publisher)
  scope: insights
  properties: {
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', publisher)
    principalId: principalId
    principalType: 'ServicePrincipal'
  }
}

output workspaceId string = workspace.id
output insightsId string = insights.id
output connectionString string = insights.properties.ConnectionString
