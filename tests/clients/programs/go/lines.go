package main

import (
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const filler = "the quick brown fox jumps over the lazy dog the quick brown fox jumps over the lazy dog "

// arguments are the program's `key=value` arguments.
type arguments map[string]string

func parse(given []string) arguments {
	parsed := arguments{}
	for _, argument := range given {
		key, value, _ := strings.Cut(argument, "=")
		parsed[key] = value
	}
	return parsed
}

func (a arguments) text(key string) string {
	value, ok := a[key]
	if !ok {
		panic(key + "=... is missing")
	}
	return value
}

func (a arguments) number(key string, otherwise int) int {
	if text, ok := a[key]; ok {
		number, err := strconv.Atoi(text)
		if err != nil {
			panic(err)
		}
		return number
	}
	return otherwise
}

// lines prints one JSON object per line; callable from any goroutine.
type lines struct {
	sync.Mutex
	acks [][3]int64
}

// program is one run of a client: its arguments, its lines, and how far a producer is.
type program struct {
	lines
	arguments
	began      time.Time
	sent, next int
}

func newProgram() *program {
	given := parse(os.Args[1:])
	return &program{arguments: given, began: time.Now(), next: given.number("first", 0)}
}

// run plays the role that the arguments name until the process is told to end.
func (p *program) run(roles map[string]func(context.Context)) {
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	role, ok := roles[p.text("role")]
	if !ok {
		panic("no role " + p.text("role"))
	}
	role(stop)
}

// versionOf is the version of a module that this program was built with.
func versionOf(module string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, one := range info.Deps {
			if one.Path == module {
				return one.Version
			}
		}
	}
	return "unknown"
}

type fields map[string]any

func now() int64 { return time.Now().UnixMilli() }

func (l *lines) say(event string, more fields) {
	line := fields{"e": event, "t": now()}
	for key, value := range more {
		line[key] = value
	}
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	l.Lock()
	defer l.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func (l *lines) error(event string, err error) { l.say(event, fields{"error": err.Error()}) }

func (l *lines) acked(number int, offset int64) {
	l.Lock()
	defer l.Unlock()
	l.acks = append(l.acks, [3]int64{int64(number), offset, now()})
}

func (l *lines) flush() {
	l.Lock()
	acks := l.acks
	l.acks = nil
	l.Unlock()
	if len(acks) > 0 {
		l.say("acked", fields{"r": acks})
	}
}

func (l *lines) failed(numbers []int, written bool, err error) {
	l.say("failed", fields{"r": numbers, "written": written, "error": err.Error()})
}

// identity is a value's writer and number.
func identity(value []byte) (string, int) {
	parts := strings.SplitN(string(value), "|", 4)
	if len(parts) == 4 && parts[0] == "live" {
		if number, err := strconv.Atoi(parts[2]); err == nil {
			return parts[1], number
		}
	}
	return "", -1
}
