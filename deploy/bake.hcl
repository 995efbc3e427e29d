# Both targets for both architectures: IMAGE and VERSION come from `make bake` or the release workflow.
#   docker buildx bake --file deploy/bake.hcl
variable "IMAGE" { default = "memory-extproc" }
variable "VERSION" { default = "unknown" }
variable "REVISION" { default = "unknown" }
# python:TAG@sha256:…, written by the release workflow; empty: the Dockerfile's tag
variable "BASE" { default = "" }

group "default" { targets = ["full", "slim"] }

target "common" {
  context    = "."
  dockerfile = "deploy/Dockerfile"
  platforms  = ["linux/amd64", "linux/arm64"]
  attest     = ["type=sbom", "type=provenance,mode=max"]
  args = {
    VERSION  = VERSION
    REVISION = REVISION
    BASE     = BASE == "" ? null : BASE
  }
}

target "full" {
  inherits = ["common"]
  target   = "full"
  tags     = ["${IMAGE}:${VERSION}"]
}

target "slim" {
  inherits = ["common"]
  target   = "slim"
  tags     = ["${IMAGE}:${VERSION}-slim"]
}
