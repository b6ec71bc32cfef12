package pulse

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"skerry/edgenode/view"
	"skerry/pkg/problem"
	"skerry/pkg/survey"
)

// Pages are an environment's surveys, rendered: what a request needs is looked up and
// sent. They never change; a change of a survey makes new Pages that share the rest.
type Pages struct {
	tag     []byte // of the list, with its quotes
	list    *page
	surveys map[string]*rendered // by id and by slug
	order   []*rendered          // in order of id: one's slug may be another's id
}

// rendered is one survey.
type rendered struct {
	of     *view.Survey
	id     string
	entry  []byte // of the list; nil unless published
	bundle *page  // nil unless published
	// refusal answers a fetch of a survey that is not published.
	refusal []byte
}

// Tag is the entity tag of an environment's list, quotes included: the handshake shows
// it as the tag of its module pulse. Read only.
func Tag(env *view.Environment) []byte { return env.Pulse.(*Pages).tag }

// Compile renders an environment's surveys. It is the Pulse hook of package view:
// what it returns is a *Pages and how many bytes that holds.
func Compile(prev any, env *view.Environment, _ view.Changed) (compiled any, bytes int) {
	before, _ := prev.(*Pages)
	pages := &Pages{surveys: make(map[string]*rendered, 2*len(env.Surveys)), order: make([]*rendered, 0, len(env.Surveys))}
	tag := survey.NewTag(env.ProjectID)
	list := []byte{'['}
	held := 0
	for _, s := range env.Surveys {
		r := before.unchanged(s)
		if r == nil {
			r = render(s)
		}
		pages.order = append(pages.order, r)
		pages.surveys[r.id], pages.surveys[s.Slug] = r, r
		tag.Add(r.id, s.UpdatedAt)
		if r.entry != nil {
			if len(list) > 1 {
				list = append(list, ',')
			}
			list = append(list, r.entry...)
		}
		held += r.weight()
	}
	// Forms of the list in other codings have the same tag, so it is a weak one.
	pages.tag = append([]byte("W/"), tag.String()...)
	pages.list = newPage(append(list, ']'))
	return pages, held + pages.list.weight()
}

// unchanged is the survey as it was rendered before; nil when it is new or other.
func (p *Pages) unchanged(s *view.Survey) *rendered {
	if p == nil {
		return nil
	}
	i, ok := slices.BinarySearchFunc(p.order, s.ID, func(r *rendered, id string) int { return strings.Compare(r.id, id) })
	if ok && p.order[i].of == s {
		return p.order[i]
	}
	return nil
}

func render(s *view.Survey) *rendered {
	d := s.Definition
	b := &d.Bundle
	r := &rendered{of: s, id: b.Survey.ID}
	if b.Survey.Status != survey.Published {
		r.refusal = problem.Newf(problem.Unprocessable, "not_accepting_responses", "the survey is %s", b.Survey.Status).Body()
		return r
	}
	r.entry = marshal(b.Entry(d.Display))
	r.bundle = newPage(marshal(b))
	return r
}

// weight is an estimate: the compressed forms of a page take less than the page itself.
func (r *rendered) weight() int {
	const overhead = 200
	if r.bundle == nil {
		return overhead
	}
	return overhead + len(r.entry) + r.bundle.weight()
}

func marshal(v any) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(fmt.Sprintf("BUG: %T does not marshal: %v", v, err))
	}
	return bytes.Clone(bytes.TrimSuffix(out.Bytes(), []byte("\n"))) // without the buffer's slack
}
