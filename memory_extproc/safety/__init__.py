"""What may be kept of people's words: secrets, identifiers, special categories, poison. Pure: rules about text."""
