package cluster

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
)

// Status prints each program, whether it runs and whether it is ready.
func (c *Cluster) Status(ctx context.Context, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PROGRAM\tPID\tSTATE\tLOG")
	for _, name := range c.super.names() {
		r, err := c.super.recorded(name)
		if err != nil {
			return err
		}
		state := "ended"
		if r.alive() {
			state = "ready"
			check, err := c.readyCheck(name)
			if err == nil {
				err = check(ctx)
			}
			if err != nil {
				state = "not ready: " + err.Error()
			}
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", name, r.PID, state, c.LogFile(name))
	}
	return w.Flush()
}
