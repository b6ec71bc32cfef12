package gate

import "skerry/edgenode/view"

// Settled runs answer with the present environment of an admitted request, while that
// does not change: see view.Store.Settled. It reports whether there is one. Nothing is
// judged or counted again.
func (g *Gate) Settled(pass Pass, answer func(*view.Environment)) bool {
	return g.config.Views.Settled(pass.Key.ProjectID, pass.Key.Environment, answer)
}
