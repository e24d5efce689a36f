// Alert rules, and who gets an e-mail. docs/operating.md, "Alerts", says what to do about each.

import { Tags } from 'types.bicep'

param token string
param location string
param tags Tags
param email string
param insightsId string
param cosmosId string
param storageId string

// The names of metrics and functions are those of docs/telemetry.md and functions/. Each rule compares the number of rows,
// or the sum of a column, with its threshold.
var queryRules = [
  {
    name: 'rejected-messages'
    description: 'A message is in a poison queue, or a prompt was given up.'
    severity: 1
    query: 'customMetrics | where name == "turnwheel.poison" | project value'
    column: 'value'
    operator: 'GreaterThan'
    threshold: 0
    minutes: 15
  }
  {
    name: 'overdue-work'
    description: 'Each sweep of the last 15 minutes found more than 100 overdue documents.'
    severity: 2
    query: 'customMetrics | where name == "turnwheel.due.backlog" | summarize smallest = min(value), count() | where count_ > 1 and smallest > 100'
    column: ''
    operator: 'GreaterThan'
    threshold: 0
    minutes: 15
  }
  {
    name: 'sweep-missing'
    description: 'The recovery sweep has not run for 15 minutes: the app does not run, or the host cannot start it.'
    severity: 0
    query: 'requests | where name == "sweep" and success == true'
    column: ''
    operator: 'LessThan'
    threshold: 1
    minutes: 15
  }
  {
    name: 'model-failures'
    description: 'More than 20 attempts of model calls failed.'
    severity: 2
    query: 'dependencies | where success == false and customDimensions["turnwheel.fault_domain"] == "model"'
    column: ''
    operator: 'GreaterThan'
    threshold: 20
    minutes: 15
  }
  {
    name: 'server-errors'
    description: 'More than 10 requests of callers ended with 500 or more.'
    severity: 2
    query: 'requests | where toint(resultCode) >= 500 and url has "/api/"'
    column: ''
    operator: 'GreaterThan'
    threshold: 10
    minutes: 15
  }
  {
    name: 'error-lines'
    description: 'The app logged an error: an operator has to act.'
    severity: 2
    query: 'traces | where severityLevel >= 3'
    column: ''
    operator: 'GreaterThan'
    threshold: 0
    minutes: 15
  }
]

resource receivers 'Microsoft.Insights/actionGroups@2023-01-01' = {
  name: 'ag-${token}'
  location: 'global'
  tags: tags
  properties: {
    groupShortName: 'turnwheel'
    enabled: true
    emailReceivers: [
      {
        name: 'operator'
        emailAddress: email
        useCommonAlertSchema: true
      }
    ]
  }
}

resource queryRule 'Microsoft.Insights/scheduledQueryRules@2026-03-01' = [
  for rule in queryRules: {
    name: 'alert-${rule.name}-${token}'
    location: location
    tags: tags
    kind: 'LogAlert'
    properties: {
      displayName: 'Turnwheel: ${rule.name}'
      description: rule.description
      severity: rule.severity
      enabled: true
      scopes: [insightsId]
      evaluationFrequency: 'PT${rule.minutes}M'
      windowSize: 'PT${rule.minutes}M'
      // A metric or table that has no row yet is no mistake of the rule.
      skipQueryValidation: true
      autoMitigate: true
      criteria: {
        allOf: [
          {
            query: rule.query
            timeAggregation: empty(rule.column) ? 'Count' : 'Total'
            metricMeasureColumn: empty(rule.column) ? null : rule.column
            operator: rule.operator
            threshold: rule.threshold
            failingPeriods: {
              numberOfEvaluationPeriods: 1
              minFailingPeriodsToAlert: 1
            }
          }
        ]
      }
      actions: { actionGroups: [receivers.id] }
    }
  }
]

resource throttled 'Microsoft.Insights/metricAlerts@2026-01-01' = {
  name: 'alert-database-throttled-${token}'
  location: 'global'
  tags: tags
  properties: {
    description: 'Cosmos DB refused more than 100 requests in 5 minutes (429): the app works, and slowly.'
    severity: 2
    enabled: true
    scopes: [cosmosId]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT5M'
    autoMitigate: true
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          name: 'refused'
          criterionType: 'StaticThresholdCriterion'
          metricNamespace: 'Microsoft.DocumentDB/databaseAccounts'
          metricName: 'TotalRequests'
          timeAggregation: 'Count'
          operator: 'GreaterThan'
          threshold: 100
          dimensions: [
            {
              name: 'StatusCode'
              operator: 'Include'
              values: ['429']
            }
          ]
        }
      ]
    }
    actions: [{ actionGroupId: receivers.id }]
  }
}

resource storageAvailability 'Microsoft.Insights/metricAlerts@2026-01-01' = {
  name: 'alert-storage-availability-${token}'
  location: 'global'
  tags: tags
  properties: {
    description: 'Fewer than 99 % of the requests to queues and artifacts succeeded in 15 minutes.'
    severity: 1
    enabled: true
    scopes: [storageId]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT15M'
    autoMitigate: true
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          name: 'available'
          criterionType: 'StaticThresholdCriterion'
          metricNamespace: 'Microsoft.Storage/storageAccounts'
          metricName: 'Availability'
          timeAggregation: 'Average'
          operator: 'LessThan'
          threshold: 99
        }
      ]
    }
    actions: [{ actionGroupId: receivers.id }]
  }
}
