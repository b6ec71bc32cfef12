//go:build !linux

package s3test

import "syscall"

func endsWithParent() *syscall.SysProcAttr { return nil }
