package natsserver

// GiveUp makes the server turn its streams off for good, as it does when its disk fails.
func (s *Server) GiveUp() error { return s.ns.ShutdownJetStream() }
