// Types of parameters that several modules have.

@export()
@description('Tags of a resource.')
type Tags = {
  *: string
}

@export()
@description('Names and values of app settings.')
type AppSettings = {
  *: string
}
