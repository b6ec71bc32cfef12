package identity

// Erase is what the API erases by.
var Erase = erase
