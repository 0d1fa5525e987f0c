package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// progress tells a person what is going on. It is safe for concurrent use.
type progress struct {
	mu  sync.Mutex
	out io.Writer
}

// say prints one line.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, format+"\n", args...)
}

// during prints what is being done while do runs, with the time that it has
// taken: on a terminal in place, every second; elsewhere a line now and then.
func (p *progress) during(ctx context.Context, what string, do func(context.Context) error) error {
	begin := time.Now()
	every, format := 30*time.Second, "%s ... %s\n"
	file, isFile := p.out.(*os.File)
	inPlace := isFile && term.IsTerminal(int(file.Fd()))
	if inPlace {
		every, format = time.Second, "\r%s ... %s "
	}
	tick := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		fmt.Fprintf(p.out, format, what, time.Since(begin).Round(time.Second))
	}
	tick()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				tick()
			}
		}
	}()
	err := do(ctx)
	close(stop)
	<-stopped
	outcome := "done"
	if err != nil {
		outcome = "failed"
	}
	end := "%s ... %s after %s\n"
	if inPlace {
		end = "\r" + end
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, end, what, outcome, time.Since(begin).Round(time.Second))
	return err
}
