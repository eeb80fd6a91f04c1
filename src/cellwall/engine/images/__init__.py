"""Images on this machine: their roots below the state directory, by the image's id."""
