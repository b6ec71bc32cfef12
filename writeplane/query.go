package writeplane

import "strings"

// readable is a query in which every semicolon, and every percent sign that codes
// nothing, stands for itself, as it does at an edge. net/url drops a parameter that holds
// one: a filter would silently not be there, and a deletion reach further than was meant.
func readable(query string) string {
	if !strings.ContainsAny(query, ";%") {
		return query
	}
	var b strings.Builder
	for i := range len(query) {
		switch c := query[i]; {
		case c == ';':
			b.WriteString("%3B")
		case c == '%' && (i+2 >= len(query) || !hexDigit(query[i+1]) || !hexDigit(query[i+2])):
			b.WriteString("%25")
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

func hexDigit(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}
