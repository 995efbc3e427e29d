"""Rules on the texts that may be kept: secrets, identifiers, special categories, poison. Pure: rules about text."""
