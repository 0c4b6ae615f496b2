"""The bench's side: workers and their deaths, races, what is found out once. It never touches a device."""
