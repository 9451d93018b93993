"""The parts of the DLRM example: data, model, training, metrics, printing. It must not know how the plugin works inside."""
