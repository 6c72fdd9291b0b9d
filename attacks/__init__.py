"""The attacks, one a file; each is a LightningModule that turns target vectors into texts."""
