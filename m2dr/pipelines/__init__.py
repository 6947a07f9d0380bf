"""What commands share: data, models, training, indexes and evaluation joined."""
