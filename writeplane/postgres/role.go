package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	insufficientPrivilege = "42501"
	duplicateObject       = "42710"
	uniqueViolation       = "23505"
)

// ensureAppRole makes the role that the program works under, where it is not
// there, and lets the owner act as it. A superuser may do both; an owner with
// CREATEROLE, as hosted databases give it, may make a role and yet not act as
// it before it is granted. An owner who may do neither is told what somebody
// who may has to type.
func ensureAppRole(ctx context.Context, conn *pgx.Conn) error {
	var owner string
	var there bool
	err := conn.QueryRow(ctx, `SELECT current_user, EXISTS (SELECT FROM pg_roles WHERE rolname = $1)`, AppRole).Scan(&owner, &there)
	if err != nil {
		return fmt.Errorf("look for the role %s: %w", AppRole, err)
	}
	byHand := func(err error) error {
		if code(err) != insufficientPrivilege {
			return fmt.Errorf("prepare the role %s: %w", AppRole, err)
		}
		grant := fmt.Sprintf("GRANT %s TO %s", AppRole, pgx.Identifier{owner}.Sanitize())
		if !there {
			grant = fmt.Sprintf("CREATE ROLE %s NOLOGIN; ", AppRole) + grant
		}
		return fmt.Errorf("the role %q has too few rights to prepare the role that the program works under; have a superuser run: %s", owner, grant)
	}
	if !there {
		_, err := conn.Exec(ctx, "CREATE ROLE "+AppRole+" NOLOGIN")
		switch code(err) {
		case duplicateObject, uniqueViolation: // roles belong to the whole cluster: another database's migration was faster
		default:
			if err != nil {
				return byHand(err)
			}
		}
		there = true
	}
	// Asking is surer than reading memberships, whose meaning differs between versions.
	if _, err = conn.Exec(ctx, "SET ROLE "+AppRole); err == nil {
		_, err = conn.Exec(ctx, "RESET ROLE")
		return err
	}
	if _, err := conn.Exec(ctx, "GRANT "+AppRole+" TO "+pgx.Identifier{owner}.Sanitize()); err != nil {
		return byHand(err)
	}
	return nil
}

// code is the server's code of an error, empty for none and for faults of the connection.
func code(err error) string {
	var fault *pgconn.PgError
	if errors.As(err, &fault) {
		return fault.Code
	}
	return ""
}
