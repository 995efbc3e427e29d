"""The memory API. `service` is the one way in; `admit` says who may, `memories`, `searching`, `forgetting`,
`transfers` and `choices` do it, `refusal` and `audit` tell of it."""
