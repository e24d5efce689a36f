// A network of the app's own: one subnet for what goes out, one for the private endpoints.

import { Tags } from 'types.bicep'

param name string
param location string
param tags Tags

resource network 'Microsoft.Network/virtualNetworks@2025-05-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    addressSpace: { addressPrefixes: ['10.0.0.0/16'] }
    subnets: [
      {
        name: 'endpoints'
        properties: {
          addressPrefix: '10.0.1.0/24'
          privateEndpointNetworkPolicies: 'Disabled'
        }
      }
      {
        name: 'app'
        properties: {
          addressPrefix: '10.0.2.0/24'
          delegations: [
            {
              name: 'flexConsumption'
              properties: { serviceName: 'Microsoft.App/environments' }
            }
          ]
        }
      }
    ]
  }
}

output networkId string = network.id
output endpointSubnetId string = resourceId('Microsoft.Network/virtualNetworks/subnets', name, 'endpoints')
output appSubnetId string = resourceId('Microsoft.Network/virtualNetworks/subnets', name, 'app')
