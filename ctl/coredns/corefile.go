package coredns

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Server is a server block of a Corefile.
type Server struct {
	Zones      []Address
	Directives []Directive
}

// Address is a zone of a server block, with the port, which is empty for CoreDNS's default.
type Address struct {
	Transport  string // dns, tls, https, grpc or quic
	Zone, Port string // cluster.local, 53
}

// Directive configures a plugin. Body is the lines between its braces.
type Directive struct {
	Name string
	Args []string
	Body [][]string
}

// maxTokens bounds an expanded Corefile, maxImports the files that it imports.
const (
	maxTokens  = 1 << 16
	maxImports = 200
)

var errTooLarge = fmt.Errorf("it has more than %d words", maxTokens)

// token is a word of a Corefile.
type token struct {
	text  string
	first bool // of its line
	file  string
}

// tokens splits a file into words, as CoreDNS's lexer does: words in double quotes may contain
// spaces, and # begins a comment.
func tokens(file, text string) []token {
	var all []token
	var word []rune
	first, open, quoted, escaped, comment := true, false, false, false, false
	end := func() {
		all = append(all, token{string(word), first, file})
		word, open, first = nil, false, false
	}
	for _, r := range strings.TrimPrefix(text, "\ufeff") {
		switch {
		case quoted && !escaped && r == '\\':
			escaped = true
		case quoted && !escaped && r == '"':
			quoted = false
			end()
		case quoted:
			if escaped && r != '"' {
				word = append(word, '\\')
			}
			word, escaped = append(word, r), false
		case r == '\r':
		case unicode.IsSpace(r):
			if open {
				end()
			}
			if r == '\n' {
				first, comment = true, false
			}
		case r == '#' || comment:
			comment = true
		case r == '"' && !open:
			open, quoted = true, true
		default:
			word, open = append(word, r), true
		}
	}
	if open {
		end()
	}
	return all
}

// files are the files that CoreDNS sees, by path.
type files map[string]string

// parser parses a Corefile. CoreDNS's own one, coredns/caddy/caddyfile, reads what is imported
// from the disk of the machine that it runs on.
type parser struct {
	files    files
	tokens   []token
	at       int
	expanded int
	snippets map[string][]token
	parsed
}

// parsed is what a Corefile and the files that it imports contain.
type parsed struct {
	servers []Server
	// imports are the patterns of files with server blocks.
	imports []string
	err     error
}

// parse parses a Corefile and the files that it imports.
func parse(files files, main string) parsed {
	p := &parser{files: files, tokens: tokens(main, files[main]), snippets: map[string][]token{}}
	if len(p.tokens) > maxTokens {
		p.err = errTooLarge
		return p.parsed
	}
	for {
		s, err := p.server()
		if err != nil || s == nil {
			p.err = err
			return p.parsed
		}
		p.servers = append(p.servers, *s)
	}
}

// server parses the next server block; nil: there are no more.
func (p *parser) server() (*Server, error) {
	var keys []string
	for {
		t, ok, err := p.next(len(keys) == 0)
		switch {
		case err != nil:
			return nil, err
		case !ok && len(keys) == 0:
			return nil, nil
		case !ok:
			return nil, fmt.Errorf("no { after %s", printable.Text(strings.Join(keys, " "), printable.Short))
		case t.text == "{":
			if len(keys) == 1 && len(keys[0]) > 2 && keys[0][0] == '(' && strings.HasSuffix(keys[0], ")") {
				if err := p.snippet(strings.Trim(keys[0], "()")); err != nil {
					return nil, err
				}
				keys = nil
				continue
			}
			s := &Server{}
			for _, key := range keys {
				s.Zones = append(s.Zones, address(key))
			}
			s.Directives, err = p.directives()
			return s, err
		case t.first && len(keys) > 0 && !strings.HasSuffix(keys[len(keys)-1], ","):
			// CoreDNS allows this for a single server.
			return nil, fmt.Errorf("the server block of %s has no braces", printable.Text(strings.Join(keys, " "), printable.Short))
		}
		keys = append(keys, t.text)
	}
}

// next returns the next token, after it has replaced imports by what they import. Outside is
// whether it is outside of server blocks.
func (p *parser) next(outside bool) (token, bool, error) {
	for p.at < len(p.tokens) {
		t := p.tokens[p.at]
		if t.text != "import" || !t.first {
			p.at++
			return t, true, nil
		}
		if p.at+1 == len(p.tokens) || p.tokens[p.at+1].first {
			return t, false, errors.New("import of nothing")
		}
		of := p.tokens[p.at+1].text
		imported, ok := p.snippets[of]
		if p.expanded++; p.expanded > maxImports {
			return t, false, errors.New("too many imports")
		}
		if !ok {
			imported = p.imported(t.file, of, outside)
		}
		if len(imported)+len(p.tokens) > maxTokens {
			return t, false, errTooLarge
		}
		p.tokens = append(slices.Clone(imported), p.tokens[p.at+2:]...)
		p.at = 0
	}
	return token{}, false, nil
}

// imported returns the tokens of the files that a pattern matches.
func (p *parser) imported(in, pattern string, outside bool) []token {
	if !path.IsAbs(pattern) {
		pattern = path.Join(path.Dir(in), pattern)
	}
	if outside && !slices.Contains(p.imports, pattern) {
		p.imports = append(p.imports, pattern)
	}
	var all []token
	for _, file := range p.files.match(pattern) {
		all = append(all, tokens(file, p.files[file])...)
	}
	return all
}

// match returns the paths of the files that a pattern matches.
func (f files) match(pattern string) []string {
	var all []string
	for file := range f {
		if ok, err := path.Match(pattern, file); ok && err == nil {
			all = append(all, file)
		}
	}
	slices.Sort(all)
	return all
}

func (p *parser) snippet(name string) error {
	depth, from := 1, p.at
	for ; p.at < len(p.tokens); p.at++ {
		switch p.tokens[p.at].text {
		case "{":
			depth++
		case "}":
			depth--
		}
		if depth == 0 {
			p.snippets[name] = p.tokens[from:p.at]
			p.at++
			return nil
		}
	}
	return fmt.Errorf("no } after (%s)", printable.Text(name, printable.Short))
}

// directives parses the lines of a server block, up to its closing brace.
func (p *parser) directives() ([]Directive, error) {
	var all []Directive
	for {
		t, ok, err := p.next(false)
		switch {
		case err != nil:
			return nil, err
		case !ok:
			return nil, errors.New("a server block has no }")
		case t.text == "}":
			return all, nil
		case t.first || len(all) == 0:
			all = append(all, Directive{Name: t.text})
			continue
		}
		last := &all[len(all)-1]
		if t.text == "{" {
			if last.Body, err = p.body(); err != nil {
				return nil, err
			}
			continue
		}
		last.Args = append(last.Args, t.text)
	}
}

// body parses the lines between the braces of a directive. It doesn't part nested ones.
func (p *parser) body() ([][]string, error) {
	var lines [][]string
	for depth := 1; ; {
		t, ok, err := p.next(false)
		switch {
		case err != nil:
			return nil, err
		case !ok:
			return nil, errors.New("a directive has no }")
		case t.text == "{":
			depth++
		case t.text == "}":
			if depth--; depth == 0 {
				return lines, nil
			}
		}
		if t.first || len(lines) == 0 {
			lines = append(lines, nil)
		}
		lines[len(lines)-1] = append(lines[len(lines)-1], t.text)
	}
}

// address parses the address of a server block, such as dns://cluster.local:53.
func address(key string) Address {
	a := Address{Transport: "dns", Zone: strings.TrimSuffix(key, ",")}
	if transport, rest, found := strings.Cut(a.Zone, "://"); found {
		a.Transport, a.Zone = transport, rest
	}
	if at := strings.LastIndexByte(a.Zone, ':'); at >= 0 {
		if _, err := strconv.ParseUint(a.Zone[at+1:], 10, 16); err == nil {
			a.Zone, a.Port = a.Zone[:at], a.Zone[at+1:]
		}
	}
	a.Zone = cmp.Or(strings.ToLower(strings.TrimSuffix(a.Zone, ".")), ".")
	return a
}

// serves reports whether a server answers for a zone on plain DNS at the port of another.
func (a Address) serves(zone string, like Address) bool {
	return a.Transport == "dns" && a.Zone == zone && cmp.Or(a.Port, "53") == cmp.Or(like.Port, "53")
}

// plain returns the first address of plain DNS of a server block; the zero value: it has none.
func (s *Server) plain() Address {
	if s != nil {
		for _, a := range s.Zones {
			if a.Transport == "dns" {
				return a
			}
		}
	}
	return Address{}
}

// directive returns a directive of a server block; nil: there is none.
func (s *Server) directive(name string) *Directive {
	for i := range s.Directives {
		if s.Directives[i].Name == name {
			return &s.Directives[i]
		}
	}
	return nil
}

// quote returns words as a line of a Corefile.
func quote(words []string) string {
	var all []string
	for _, w := range words {
		if w == "" || strings.ContainsFunc(w, unicode.IsSpace) || strings.ContainsAny(w, `"#`) {
			w = `"` + strings.ReplaceAll(w, `"`, `\"`) + `"`
		}
		all = append(all, w)
	}
	return strings.Join(all, " ")
}

// String returns the address as it stands before a server block.
func (a Address) String() string {
	text := a.Zone
	if a.Transport != "dns" {
		text = a.Transport + "://" + text
	}
	if a.Port != "" {
		text += ":" + a.Port
	}
	return text
}
