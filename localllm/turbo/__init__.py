"""Mode turbo: calibrating what a model may leave out within a budget of loss, and keeping that beside the model."""
