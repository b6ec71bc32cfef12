package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"gopkg.in/yaml.v3"
)

// settings are the values of a YAML file:
//
//	log-format: json          # a flag of any command, by its name
//	writeplane:               # the flags of one command, which win
//	  listen: 0.0.0.0:8090
//
// Names are those of the flags, with - or _. A value is the text that stands there, as
// on the command line: 007 is not 7, and 2026-01-02 no time of YAML's.
type settings struct {
	path   string
	values map[string]any
}

// BeforeResolve reads the file that --config or SKERRY_CONFIG names, as soon
// as that is known and before other flags take their values from it.
func (r *root) BeforeResolve(app *kong.Kong, ctx *kong.Context) error {
	path := os.Getenv("SKERRY_CONFIG")
	for _, p := range ctx.Path {
		if p.Flag != nil && p.Flag.Name == "config" {
			path, _ = ctx.FlagValue(p.Flag).(string)
		}
	}
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	defer f.Close()
	s, err := readSettings(path, f)
	if err != nil {
		return err
	}
	if err := s.Validate(app.Model); err != nil {
		return err
	}
	ctx.AddResolver(s)
	return nil
}

func readSettings(path string, r io.Reader) (*settings, error) {
	s := &settings{path: path}
	var document yaml.Node
	if err := yaml.NewDecoder(r).Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %s", path, withoutYAML(err))
	}
	if len(document.Content) == 0 || document.Content[0].Tag == "!!null" {
		return s, nil // nothing is said: all flags keep their defaults
	}
	if document.Content[0].Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s: line %d: expected lines of the form `flag: value`", path, document.Content[0].Line)
	}
	if err := document.Decode(&s.values); err != nil {
		return nil, fmt.Errorf("%s: %s", path, withoutYAML(err))
	}
	s.values, _ = asWritten(document.Content[0], s.values).(map[string]any)
	return s, nil
}

// asWritten puts the text of plain values in the place of what YAML takes them for.
// What has no text of its own, such as a section merged from another, stays.
func asWritten(n *yaml.Node, decoded any) any {
	switch n.Kind {
	case yaml.AliasNode:
		return asWritten(n.Alias, decoded)
	case yaml.ScalarNode:
		if decoded != nil {
			return n.Value
		}
	case yaml.SequenceNode:
		if list, ok := decoded.([]any); ok && len(list) == len(n.Content) {
			for i, item := range n.Content {
				list[i] = asWritten(item, list[i])
			}
		}
	case yaml.MappingNode:
		section, _ := decoded.(map[string]any)
		for i := 0; i+1 < len(n.Content); i += 2 {
			if v, ok := section[n.Content[i].Value]; ok {
				section[n.Content[i].Value] = asWritten(n.Content[i+1], v)
			}
		}
	}
	return decoded
}

// withoutYAML is what the parser says, beginning with the line.
func withoutYAML(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	return strings.TrimSpace(strings.TrimPrefix(text, "unmarshal errors:"))
}

// Validate names every key that is no flag, with the flag that was probably meant.
func (s *settings) Validate(app *kong.Application) error {
	everywhere := map[string]bool{}
	collect(app.Node, everywhere)
	var unknown []string
	for key, value := range s.values {
		section, isSection := value.(map[string]any)
		if !isSection {
			switch {
			case everywhere[dashed(key)]:
			case command(app.Node, key) != nil && value != nil:
				return fmt.Errorf("%s: %s is a command: its flags stand indented below it", s.path, key)
			case command(app.Node, key) == nil:
				unknown = append(unknown, withGuess(key, everywhere))
			}
			continue
		}
		node := command(app.Node, key)
		if node == nil {
			unknown = append(unknown, key)
			continue
		}
		here := map[string]bool{}
		collect(node, here)
		for sub := range section {
			if !here[dashed(sub)] {
				unknown = append(unknown, key+"."+withGuess(sub, here))
			}
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	return fmt.Errorf("%s: unknown: %s", s.path, strings.Join(unknown, ", "))
}

// Resolve gives a flag its value from the command's section, else from the
// top of the file, unless the environment has one.
func (s *settings) Resolve(_ *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	for _, env := range flag.Envs {
		if _, ok := os.LookupEnv(env); ok {
			return nil, nil
		}
	}
	for n := parent.Node(); n != nil; n = n.Parent {
		if section, ok := lookup(s.values, n.Name).(map[string]any); ok && n.Type == kong.CommandNode {
			if v := lookup(section, flag.Name); v != nil {
				return scalar(flag, v)
			}
		}
	}
	v := lookup(s.values, flag.Name)
	if _, isSection := v.(map[string]any); v == nil || isSection {
		return nil, nil
	}
	return scalar(flag, v)
}

// scalar writes a YAML value as it would stand on the command line.
func scalar(flag *kong.Flag, v any) (any, error) {
	if _, isSection := v.(map[string]any); isSection {
		return nil, errors.New("takes a value, not a section")
	}
	list, ok := v.([]any)
	if !ok {
		return fmt.Sprint(v), nil
	}
	if !flag.IsSlice() {
		return nil, errors.New("takes one value, not a list")
	}
	words := make([]string, len(list))
	for i, item := range list {
		words[i] = fmt.Sprint(item)
	}
	return kong.JoinEscaped(words, flag.Tag.Sep), nil
}

func collect(n *kong.Node, names map[string]bool) {
	for _, f := range n.Flags {
		names[f.Name] = true
	}
	for _, child := range n.Children {
		collect(child, names)
	}
}

func command(n *kong.Node, name string) *kong.Node {
	for _, child := range n.Children {
		if child.Name == dashed(name) {
			return child
		}
	}
	return nil
}

func lookup(values map[string]any, name string) any {
	for key, v := range values {
		if dashed(key) == name {
			return v
		}
	}
	return nil
}

func dashed(key string) string { return strings.ReplaceAll(key, "_", "-") }
