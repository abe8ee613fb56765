"""Weight tiles: 16 output rows side by side, one sequential stream of blocks of 32 inputs, the same weights exactly."""
