// Who the app is: one identity, so that its rights can be given before the app exists.

import { Tags } from 'types.bicep'

param name string
param location string
param tags Tags

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' = {
  name: name
  location: location
  tags: tags
}

output id string = identity.id
output clientId string = identity.properties.clientId
output principalId string = identity.properties.principalId
