package main

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
)

// echoArgument has this program be a server that does nothing, as a yardstick: it
// reads what it gets and answers with so many bytes as the path says. It is a
// process of its own, like the extender, so that a busy machine slows both.
const echoArgument = "echo"

// echoing is what such a server says of itself on its standard output.
type echoing struct {
	URL string
	CA  []byte
}

// serveEcho serves until the standard input ends.
func serveEcho() error {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		n, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		w.Header().Set("Content-Length", strconv.Itoa(n))
		_, _ = w.Write(make([]byte, n))
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := json.NewEncoder(os.Stdout).Encode(echoing{s.URL, ca}); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// startEcho starts one; stop ends it.
func startEcho(ctx context.Context) (c *caller, url string, stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", nil, err
	}
	cmd := exec.CommandContext(ctx, self, echoArgument)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, "", nil, err
	}
	stop = func() error { return errors.Join(in.Close(), cmd.Wait()) }
	defer func() {
		if err != nil {
			err = errors.Join(err, stop())
		}
	}()
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		return nil, "", nil, fmt.Errorf("echo: %w", err)
	}
	var e echoing
	if err := json.Unmarshal(line, &e); err != nil {
		return nil, "", nil, fmt.Errorf("echo: %w", err)
	}
	transport, err := rest.TransportFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: e.CA}})
	if err != nil {
		return nil, "", nil, err
	}
	return &caller{client: &http.Client{Transport: transport}}, e.URL, stop, nil
}
