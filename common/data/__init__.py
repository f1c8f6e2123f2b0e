"""Files of users' data. What a record means is each system's own: `plugins/data`, `reveal/sources`."""
