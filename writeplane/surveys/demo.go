package surveys

import (
	_ "embed"
	"encoding/json"

	"skerry/pkg/survey"
)

//go:embed demo.json
var demo []byte

// Demo are the surveys of the demonstration project: one of every kind, together all
// kinds of questions, one with branching and two languages. Each has a slug.
func Demo() []survey.Authored {
	var authored []survey.Authored
	if err := json.Unmarshal(demo, &authored); err != nil {
		panic("BUG: the demo surveys do not parse: " + err.Error())
	}
	return authored
}
