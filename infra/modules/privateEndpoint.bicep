// One service at an address inside the network, and the name that leads there.

import { Tags } from 'types.bicep'

param name string
param location string
param tags Tags
param serviceId string

@description('Which part of the service: blob, queue, table, Sql, vault, account.')
param part string

@description('The zone in which the service\'s name is looked up from inside.')
param zoneName string

param subnetId string
param networkId string

resource endpoint 'Microsoft.Network/privateEndpoints@2025-05-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    subnet: { id: subnetId }
    privateLinkServiceConnections: [
      {
        name: name
        properties: {
          privateLinkServiceId: serviceId
          groupIds: [part]
        }
      }
    ]
  }
}

resource zone 'Microsoft.Network/privateDnsZones@2024-06-01' = {
  name: zoneName
  location: 'global'
  tags: tags
}

resource link 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = {
  parent: zone
  name: uniqueString(networkId)
  location: 'global'
  tags: tags
  properties: {
    registrationEnabled: false
    virtualNetwork: { id: networkId }
  }
}

resource record 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2025-05-01' = {
  parent: endpoint
  name: 'default'
  properties: {
    privateDnsZoneConfigs: [
      {
        name: part
        properties: { privateDnsZoneId: zone.id }
      }
    ]
  }
}
