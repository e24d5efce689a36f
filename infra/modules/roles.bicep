// Azure's built-in roles, by their ids: the least that each task needs.

@export()
var roles = {
  'Storage Blob Data Owner': 'b7e6dc6d-f1e8-4753-8033-0f276bb0955b'
  'Storage Blob Data Contributor': 'ba92f5b4-2d11-453d-a403-e96b0029c9fe'
  'Storage Queue Data Contributor': '974c5e8b-45b9-4653-ba55-5f855dd0fb88'
  'Storage Table Data Contributor': '0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3'
  'Monitoring Metrics Publisher': '3913510d-42f4-4e42-8a64-420c390055eb'
  'Key Vault Secrets User': '4633458b-17de-408a-b874-0445c86b69e6'
  'Cognitive Services OpenAI User': '5e0bd9bd-7b93-4f28-af87-19fc36ad61bd'
  'Azure ContainerApps Session Executor': '0fb8eba5-a2bb-4abe-b1c1-49dfad359bb0'
  'Cosmos DB Built-in Data Contributor': '00000000-0000-0000-0000-000000000002'
}
